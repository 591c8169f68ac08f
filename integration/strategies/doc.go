// Package strategies holds the code of docs/strategies.md: a strategy of another
// program for PostgreSQL, with its tests on a real server.
package strategies
