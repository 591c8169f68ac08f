// Package scope decides whether an agent may do an operation on a path.
//
// It is pure: it makes no system call and opens no file. An [ID] names an
// agent. A [PolicySpec] holds the rules of an agent's files as its definition
// states them. [Compile] converts it to a [Policy]. [Policy.File] returns the
// [Decision] about an [Op] on a path, which names the rule that decided.
// [Policy.Remedy] returns the change that would allow the operation.
//
// Paths are relative to the scope, separated by slashes, clean, and without a
// leading slash; "" is the root of the scope. If several rules match a path,
// the most restrictive one applies: hide before read, read before write.
//
// A Policy is immutable and safe for concurrent use. Policy.File does not
// allocate. Package scope/beneath opens the files that a policy allows. Package
// scope/agents reads definition files, and scope/network decides about connections.
package scope
