// Package strategies holds the example of docs/strategies.md: a strategy of another
// program for PostgreSQL, with its tests on a real server.
package strategies
