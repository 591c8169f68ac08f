// Package agents reads the files that define agents.
//
// A base directory holds agents.d/<id>.md (a definition: YAML front matter and
// the prompt), extensions.d/<name>/ (what brings servers and agents) and
// skills/<name>/. [Load] reads them and returns a [Snapshot]: for each agent a
// [Definition], as written, and [Grants], the compiled answer to which tools,
// servers, skills, members and contexts it may use. [Snapshot.Reload] reads
// again only what changed and keeps the last good definition of a file that is
// wrong now. A definition may also be made in code: [Definition.Grants].
//
// The package knows no tool: [Host].Tools are those that definitions may name.
//
// All errors of a file are returned at once, each a [*fields.FileError] with
// file, line, key and remedy. A pattern that matches nothing when its file is
// written is an error; a name that disappears later is a warning and grants
// nothing.
//
// Files are opened through descriptors of their directories and never through
// links. A directory of definitions inside {base}/agents, where agents write, is
// refused. Snapshots, Definitions and Grants are immutable.
package agents
