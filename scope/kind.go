package scope

// Kind is the kind of rule that made a [Decision]. Programs compare kinds; the
// text of a rule is for people. The log records it as rule_kind.
type Kind string

// The kinds of rules about files.
const (
	KindAccess     Kind = "access"     // view.access, if no rule of view.paths matches
	KindPath       Kind = "path"       // view.paths
	KindBelow      Kind = "below"      // a rule of view.paths for something below a directory that would move
	KindProtect    Kind = "protect"    // protect
	KindRoot       Kind = "root"       // the root of a view cannot move
	KindHardlinks  Kind = "hardlinks"  // view.hardlinks
	KindHistory    Kind = "history"    // history: what cannot be kept does not change
	KindView       Kind = "view"       // an operation that no view allows
	KindResolution Kind = "resolution" // the path leads outside the scope
)

// The kinds of rules about calls. If no rule restricts a decision, its kind is
// that of the list that could.
const (
	KindTool    Kind = "tool"    // tools, policy.tools, and the tools of a server
	KindServer  Kind = "server"  // mcps, policy.mcp
	KindSkill   Kind = "skill"   // skills
	KindMember  Kind = "member"  // members
	KindContext Kind = "context" // scopes
	KindRate    Kind = "rate"    // rate_limits, network.limit
	KindFilter  Kind = "filter"  // argument_filters
	KindSchema  Kind = "schema"  // the schema of a tool's arguments
	KindGrant   Kind = "grant"   // stores in scopefs.yaml: who may use what of a store
	KindStore   Kind = "store"   // what a store of that kind allows no agent
	KindLimit   Kind = "limit"   // a bound of scopefs or of a server, which no key of a definition sets
	KindNeed    Kind = "need"    // what the call needs is not there, such as a client that asks its user
)

// The kinds of rules about network connections.
const (
	KindHost     Kind = "host"     // network.deny, network.ask, network.allow
	KindRequest  Kind = "request"  // methods and paths of a rule of network.allow
	KindField    Kind = "field"    // a field by which some servers read another method or path than a rule of network.allow decided about
	KindAddress  Kind = "address"  // the address of a host is not public, and no rule has it
	KindSecret   Kind = "secret"   // a credential's placeholder goes to its host only
	KindProtocol Kind = "protocol" // a request that another server could read differently
	KindPort     Kind = "port"     // network.publish, network.host; who may connect to a published port
)

// KindNothing is the kind of every decision of the zero Policy or zero Grants,
// which allow nothing.
const KindNothing Kind = "nothing"
