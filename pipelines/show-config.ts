/** `varve config`: every setting, its value and where it came from. */
import { type LoadedConfig, shownValue } from './config.ts';
import { print, printJson, table } from './print.ts';

export function showConfig({ settings, file }: LoadedConfig, json: boolean): void {
  if (json) {
    printJson({ file, settings: settings.map((setting) => ({ ...setting, value: shownValue(setting) })) });
    return;
  }
  print(file === undefined ? 'no varve.json here; defaults and environment\n\n' : `${file}\n\n`);
  const rows = settings.map((setting) => [
    setting.key,
    shownValue(setting),
    setting.source,
    setting.variable,
    setting.description,
  ]);
  print(table(['setting', 'value', 'from', 'variable', 'meaning'], rows));
}
