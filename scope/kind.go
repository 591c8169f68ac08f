package scope

// Kind names the sort of rule that made a [Decision]. Programs compare kinds; a
// rule's text is for people. The log has it as rule_kind.
type Kind string

// The kinds of rules about files.
const (
	KindAccess     Kind = "access"     // view.access: no rule of view.paths matches
	KindPath       Kind = "path"       // view.paths
	KindBelow      Kind = "below"      // view.paths, about what is below a directory that would move
	KindRoot       Kind = "root"       // the root of a view never moves
	KindHardlinks  Kind = "hardlinks"  // view.hardlinks
	KindView       Kind = "view"       // no view does this for an agent
	KindResolution Kind = "resolution" // the path leads outside the scope
)

// The kinds of rules about what is not a file. Of a decision that no rule
// restricts, the kind is that of the list that could.
const (
	KindTool    Kind = "tool"    // tools, policy.tools, and the tools of a server
	KindServer  Kind = "server"  // mcps, policy.mcp
	KindSkill   Kind = "skill"   // skills
	KindMember  Kind = "member"  // members
	KindContext Kind = "context" // scopes
	KindRate    Kind = "rate"    // rate_limits
	KindFilter  Kind = "filter"  // argument_filters
	KindSchema  Kind = "schema"  // the arguments that a tool takes
)

// KindNothing is of a Policy or of Grants that nobody has compiled: they allow
// nothing.
const KindNothing Kind = "nothing"
