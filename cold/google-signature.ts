/**
 * Google's signature of requests to its XML API: V4 signing with HMAC keys, GOOG4-HMAC-SHA256.
 *
 * It is AWS's Signature Version 4 with other words. Google takes AWS's as well, but not together with headers of its
 * own: "Requests cannot specify both x-amz and x-goog headers". Its conditional put is such a header, so that one
 * request is signed in Google's words. Everything else goes in AWS's.
 */
import { createHmac, hash } from 'node:crypto';

export type SignableRequest = {
  readonly method: string;
  /** Percent-encoded. */
  readonly path: string;
  readonly query?: Readonly<Record<string, unknown>> | undefined;
  readonly headers: Record<string, string>;
};

export type HmacKey = { readonly accessKeyId: string; readonly secretAccessKey: string };

/** Google looks at the place in the scope only for its form. */
const PLACE = 'auto';

/**
 * Replaces AWS's headers and signature by Google's, in place. The body's SHA-256 is in x-amz-content-sha256; the
 * request has no query, but for what the SDK adds for itself.
 */
export function signForGoogle(request: SignableRequest, key: HmacKey, now: Date): void {
  const { headers } = request;
  const bodySha256 = headers['x-amz-content-sha256'] ?? 'UNSIGNED-PAYLOAD';
  for (const name of Object.keys(headers)) if (/^(x-amz-.*|authorization)$/i.test(name)) delete headers[name];
  const date = now.toISOString().replaceAll(/[-:]|\.\d{3}/g, '');
  headers['x-goog-content-sha256'] = bodySha256;
  headers['x-goog-date'] = date;
  const names = Object.keys(headers)
    .filter((name) => /^(host|x-goog-.*)$/.test(name))
    .toSorted();
  const query = Object.entries(request.query ?? {}).map(([name, value]) => `${encode(name)}=${encode(String(value))}`);
  const canonical = [
    request.method,
    request.path,
    query.toSorted().join('&'),
    ...names.map((name) => `${name}:${headers[name] ?? ''}`),
    '',
    names.join(';'),
    bodySha256,
  ].join('\n');
  const day = date.slice(0, 8);
  const scope = `${day}/${PLACE}/storage/goog4_request`;
  const text = `GOOG4-HMAC-SHA256\n${date}\n${scope}\n${hash('sha256', canonical)}`;
  const signingKey = [day, PLACE, 'storage', 'goog4_request'].reduce<Buffer | string>(
    hmac,
    `GOOG4${key.secretAccessKey}`,
  );
  const signature = hmac(signingKey, text).toString('hex');
  const credential = `${key.accessKeyId}/${scope}`;
  headers['authorization'] =
    `GOOG4-HMAC-SHA256 Credential=${credential}, SignedHeaders=${names.join(';')}, Signature=${signature}`;
}

function hmac(key: Buffer | string, text: string): Buffer {
  return createHmac('sha256', key).update(text).digest();
}

function encode(text: string): string {
  return encodeURIComponent(text).replaceAll(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}
