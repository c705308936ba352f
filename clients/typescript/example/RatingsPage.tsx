import type { Transport } from "@connectrpc/connect";
import { LiveTable } from "tablegate-client";
import { useLiveRow, useLiveTable } from "tablegate-client/react";

import { type Rating, RatingsService } from "./gen/examples/ratings/v1/ratings_pb.js";

export function Ratings({ transport }: { transport: Transport }) {
  const [ratings, table] = useLiveTable(
    () => LiveTable.open(transport, RatingsService.method.subscribeRatings, {}),
    [transport],
  );
  return (
    <section>
      <p className={ratings.state}>
        {ratings.size} movies, {ratings.state} {ratings.trouble}
      </p>
      <Movie ratings={table} movieId={7n} />
      <ul>
        {ratings.rows.map((rating) => (
          <li key={String(rating.movieId)}>
            movie {String(rating.movieId)}: {rating.averageRating} of {String(rating.ratingCount)}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** One movie of a table: it is rendered again only when its own row changes. */
export function Movie({ ratings, movieId }: { ratings: LiveTable<Rating> | undefined; movieId: bigint }) {
  const rating = useLiveRow(ratings, movieId);
  return <p className="movie">{rating === undefined ? "no such movie" : `rated ${rating.ratingCount} times`}</p>;
}
