// Package scope decides whether an agent may do an operation on a path.
//
// It is pure: it makes no system call, opens no file and knows no tool. An [ID]
// names an agent. A [PolicySpec] holds the rules of an agent's files as its
// definition states them; [Compile] turns it into a [Policy]; [Policy.File]
// answers an [Op] on a path with a [Decision], which names the rule that
// decided and the remedy.
//
// Paths are relative to the scope, separated by slashes, clean, and without a
// leading slash; "" is the scope's root. For a path that several rules match,
// the most restrictive rule holds: hide before read, read before write.
//
// A Policy is immutable. Any number of goroutines may use it at once, and a
// decision allocates no memory. Package scope/beneath opens what a policy has
// allowed; package scope/agents reads definition files.
package scope
