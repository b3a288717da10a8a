/** The binary `varve` as a child of a test: its arguments are the JSON array that this script is given. */
process.argv.splice(2, process.argv.length, ...(JSON.parse(process.argv[2] as string) as string[]));
await import('../../pipelines/main.ts');
