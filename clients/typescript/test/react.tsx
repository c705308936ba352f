// A page with the component of the how-to, and beside it one that counts how often it is rendered.
import { memo, StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { LiveTable } from "tablegate-client";
import { useLiveRow, useLiveTable } from "tablegate-client/react";
import { openTransport } from "tablegate-client/web";

import { type Rating, RatingsService } from "../example/gen/examples/ratings/v1/ratings_pb.js";
import { Ratings } from "../example/RatingsPage.js";

const address = new URLSearchParams(location.search).get("gateway") ?? "";
const transport = openTransport(`http://${address}`);

const Counted = memo(({ ratings }: { ratings: LiveTable<Rating> | undefined }) => {
  const rating = useLiveRow(ratings, 3);
  return <p id="counted">{`${rating?.ratingCount} ${(counts.renders += 1)}`}</p>;
});
const counts = { renders: 0 };

function Counting({ movieId }: { movieId?: bigint }) {
  const request = movieId === undefined ? {} : { movieId };
  const [view, table] = useLiveTable(
    () => LiveTable.open(transport, RatingsService.method.subscribeRatings, request),
    [movieId],
  );
  return (
    <>
      <p id="size">{view.size}</p>
      <Counted ratings={table} />
    </>
  );
}

function Page() {
  const [movieId, setMovieId] = useState<bigint>();
  const [isOpen, setOpen] = useState(true);
  return (
    <>
      <button id="one" onClick={() => setMovieId(3n)} />
      <button id="away" onClick={() => setOpen(false)} />
      {isOpen && <Counting {...(movieId === undefined ? {} : { movieId })} />}
      {isOpen && (
        <StrictMode>
          <Ratings transport={transport} />
        </StrictMode>
      )}
    </>
  );
}

createRoot(document.body.appendChild(document.createElement("main"))).render(<Page />);
