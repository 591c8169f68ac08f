// Package tools runs the tools of an agent. [Set.Call] is the only way to run one:
// it decides by the agent's rules and records each decision before it acts.
//
// # Tools
//
// A [Tool] has a name, a description, hints and a function. [New] makes one from
// a function with typed arguments and result; the types give the JSON schemas.
// The function is unexported: a program that holds a Tool cannot run it.
// [Dynamic] makes a tool whose schema is known only at run time, such as one of an
// MCP server. [Alias] makes a tool that calls other tools, in a form that a model
// was trained on; the rules apply to the other tools.
//
// Arguments may implement [Subject], which returns the path of a call for the log,
// and [Scoped], which refuses paths that lead out of the view. A result may
// implement [Contenter] to return better text than its JSON.
//
// # Calls
//
// A [Set] holds the tools of one session of one agent, behind a [Gate]. A call
// goes through these steps. The first that fails ends it:
//
//  1. The call takes one of the session's 32 slots, room for its arguments, and a turn
//     of the host's queue ([NewQueue]), in which no agent delays another.
//  2. The arguments are parsed once: a JSON object of 8 MiB at most, in which no object
//     has a name twice. The steps below use the same canonical bytes.
//  3. [Rules.Call] decides about the tool.
//  4. The arguments are validated against the tool's schema.
//  5. Filters ([Rules.FiltersOf]) examine every string of the arguments, also
//     decoded once from base64 or URL encoding.
//  6. A path that leads out of the view is refused and recorded as a violation.
//  7. The door selects the scopes of the client's context that the call sees ([Call],
//     [Declared], [ContextRules]).
//  8. The tool decides by its own settings ([Judged]): a service's paths, a channel's agents.
//  9. Rates ([Rules.RatesOf]) count the call. They do not count refused calls.
//  10. A decision with Ask needs an approval ([approvals.Set]) of exactly this call: these
//     arguments, this context, this version of the rules, these objects on disk.
//  11. The log takes an event with outcome "begin". Without it the tool does not run.
//  12. The tool runs.
//  13. The log takes an event with the outcome. Codes of refusals are denials with a rule.
//
// A tool that waited for a sandbox or a server calls [Still] before it acts, because
// the rules may have changed.
//
// # Errors
//
// An error is an [*Error], whose [Code] a model can act on, or an [*Asked]. It
// names nothing of the host. A path that does not exist and one that the agent may not
// reach have the same error; only the log distinguishes them. [Refused] and
// [Error.Violates] make the errors of a tool that decides for itself.
//
// # Rules of your own
//
// [Rules] is an interface with four methods. Package scope/agents implements it
// from definition files; the example of this package has a list in code. A program
// whose definition files name its tools lists them in agents.Host.Tools.
//
// # Concurrency
//
// All methods are safe for concurrent use. A Set reads its rules at each call, so
// that a change of the rules holds for the next call.
package tools
