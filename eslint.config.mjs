// The scripts of the service's page: what could be wrong, without plugins.
const names = [
  "Blob",
  "Element",
  "FormData",
  "HashChangeEvent",
  "URL",
  "clearTimeout",
  "crypto",
  "document",
  "fetch",
  "history",
  "location",
  "setTimeout",
  "window",
];

export default [
  {
    files: ["packages/veilwood-service/src/veilwood_service/pages/*.js"],
    languageOptions: { ecmaVersion: 2024, globals: Object.fromEntries(names.map((name) => [name, "readonly"])) },
    linterOptions: { reportUnusedDisableDirectives: true },
    rules: {
      "array-callback-return": "error",
      eqeqeq: "error",
      "no-const-assign": "error",
      "no-dupe-keys": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-redeclare": "error",
      "no-self-compare": "error",
      "no-shadow": "error",
      "no-undef": "error",
      "no-unreachable": "error",
      "no-unused-expressions": "error",
      "no-unused-vars": "error",
      "no-useless-return": "error",
      "no-var": "error",
      "prefer-const": "error",
    },
  },
];
