// Package scope says who an agent is and what it may reach: ids, definitions,
// file policy, and the resolution of paths beneath the one directory that is
// the agent's.
//
// Everything here is either a value (ID, Policy, Definition, Decision) or a
// descriptor the kernel holds for us (Root, Dir, File, Object). No function
// joins a path and hands it to the kernel to be looked up again: a path is
// walked once, by openat2(2), beneath the root descriptor.
package scope
