import assert from 'node:assert/strict';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import { payloadSha256 } from '../../schemas/chain.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { type ExportedEvent, exportEvents } from '../../warm/export.ts';
import { createDatabase, exec, type TestDatabase } from '../support/postgres.ts';
import { idAt } from '../support/cold-rows.ts';
