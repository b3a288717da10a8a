/**
 * Mocha stays green on an unhandled rejection (measured with version 12): this root file makes one fatal, so that a
 * floating promise in the product or in a test can never pass.
 */
process.on('unhandledRejection', (reason) => {
  throw reason;
});
