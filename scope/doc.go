// Package scope decides whether an agent may do an operation on a path, or
// connect to a host.
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
// A [NetworkSpec] holds the rules of an agent's network. [CompileNetwork] converts
// it to a [Network], which decides about connections and requests. [ParseHost]
// returns the form of a host that a Network decides about.
//
// A Policy is immutable and safe for concurrent use. Policy.File does not
// allocate. Package scope/beneath opens the files that a policy allows. Package
// scope/agents reads definition files.
package scope
