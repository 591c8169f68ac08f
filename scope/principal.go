package scope

// Origin names the side that chose the id of an agent.
type Origin int

// The origins. The zero value is the one that no list of the operator's names.
const (
	FromRepository Origin = iota // a file of a repository: it may take any id
	FromOperator                 // a definition of the operator's, or a program's
	FromExtension                // an extension: a list names it with the extension
)

// Principal is an agent as an operator's list of agents sees it. Such a list is matched against a Principal and never
// against an ID alone: a repository or an extension names its agents as it likes.
type Principal struct {
	ID        ID
	Origin    Origin
	Extension string // that defines the agent; "" unless FromExtension
}

// Listed returns the name by which a list of the operator's has the agent: its id, or EXTENSION/ID; "": no list has it.
func (p Principal) Listed() string {
	switch p.Origin {
	case FromOperator:
		return string(p.ID)
	case FromExtension:
		return p.Extension + "/" + string(p.ID)
	}
	return ""
}
