// Lists that come in pages.

/** The largest page that the server gives. */
export const PAGE_SIZE = 100;

/** A page of a list, and where the next one begins; empty: there is none. */
export interface Page<T> {
  items: T[];
  next: string;
}

/** Reads page after page, up to limit items. */
export async function all<T>(
  page: (cursor: string | undefined, left: number) => Promise<Page<T>>,
  limit = Number.POSITIVE_INFINITY,
): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | undefined;
  while (found.length < limit) {
    const { items, next } = await page(cursor, limit - found.length);
    found.push(...items);
    if (!next) break;
    cursor = next;
  }
  return found.slice(0, limit === Number.POSITIVE_INFINITY ? undefined : limit);
}
