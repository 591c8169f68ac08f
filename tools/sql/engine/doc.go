// Package engine has the protocol of the process that executes an agent's SQL. The statements are
// hostile, so they never run in the daemon: each agent has a process of its own, which
// runs as the agent's user and confines itself before it reads the first statement.
//
// # Walls
//
//  1. Package sql accepts one statement, by its first keyword.
//  2. SQLite's parser compiles the statement and reports every action to an authoriser
//     ([rules]), which allows a closed list of actions, functions and tables.
//  3. A query runs on a connection that is open read-only. Limits of the engine bound
//     lengths, depths and the size of the file; a timer interrupts the statement.
//  4. The process has a root with two files, the database and its journal. Landlock
//     allows it those files, seccomp allows no socket, no program and no new mount.
//     It has no capability, and limits of memory, file size and descriptors.
//
// # Parser
//
// SQLite's own parser decides what a statement does. A second grammar could disagree
// with it, and the disagreement would be the attack.
//
// # Crashes
//
// The journal is a file that is always there (PRAGMA journal_mode=PERSIST), because
// the process may not create one. A process that is killed leaves a hot journal; the
// next one rolls it back when it opens the database.
package engine
