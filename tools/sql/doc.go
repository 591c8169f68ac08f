// Package sql gives each agent a SQLite database of its own: the tools sql_query,
// sql_execute, sql_tables and create_table.
//
// An agent's database is one file, {state}/db/agent_{id}.db ([share.File]). No argument
// names a database, so no call reaches another agent's.
//
// # Statements
//
// A call runs one statement, in a transaction of its own. This package finds its first
// keyword and its end ([statement]); SQLite decides what it does, and an authoriser
// allows that or not. Parameters are ? with values in order; they are bound, never
// spliced. Refused are ATTACH, DETACH, PRAGMA, VACUUM, transactions, triggers, virtual
// tables, temporary tables, functions that reach beyond their arguments, and DROP
// unless [Options] allows it. The types of columns are INTEGER, TEXT, REAL, BLOB,
// NUMERIC and BOOLEAN.
//
// # Process
//
// Statements run in a confined process for each agent (package engine). The first call
// starts it, and it ends when it is idle. A statement that exceeds its time is
// interrupted; a process that does not answer then is killed. Nothing of such a
// statement is left, because SQLite rolls its transaction back.
//
// # Why SQLite's parser
//
// A parser beside the engine's (rqlite/sql, libsql/sqlite-antlr4-parser) is a second
// grammar. A statement that the two read differently is a hole. The authoriser sees the
// names that the engine's own parser resolved, so it cannot disagree.
package sql
