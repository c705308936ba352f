// Live tables in React components, by `useSyncExternalStore`: what a component renders is of one moment.
import { type DependencyList, useCallback, useEffect, useState, useSyncExternalStore } from "react";

import type { Key } from "./events.js";
import { type LiveTable, LiveView, LOADING } from "./table.js";

const nothing = (): void => undefined;
const loading = (): LiveView<never> => LOADING;

/**
 * Open a table while the component is there, and again when one of `deps` changes; render whenever it changes.
 *
 * Returns the view of this moment, and the table for `useLiveRow`; it is undefined until the component is there.
 */
export function useLiveTable<Row>(
  open: () => LiveTable<Row>,
  deps: DependencyList,
): readonly [LiveView<Row>, LiveTable<Row> | undefined] {
  const [table, setTable] = useState<LiveTable<Row>>();
  useEffect(() => {
    const opened = open();
    setTable(opened);
    return () => void opened.close();
    // `open` is another function at each render: what it reads is in `deps`.
  }, deps);
  return [useLiveView(table), table];
}

/** Return the view of a table that others open and close; render whenever it changes. */
export function useLiveView<Row>(table: LiveTable<Row> | undefined): LiveView<Row> {
  const subscribe = useCallback((listener: () => void) => table?.subscribe(listener) ?? nothing, [table]);
  return useSyncExternalStore(subscribe, () => table?.view ?? LOADING, loading);
}

/** Return the row of a key; render only when that row is another one. */
export function useLiveRow<Row>(table: LiveTable<Row> | undefined, key: Key): Row | undefined {
  const subscribe = useCallback((listener: () => void) => table?.subscribe(listener) ?? nothing, [table]);
  return useSyncExternalStore(
    subscribe,
    () => table?.get(key),
    () => undefined,
  );
}
