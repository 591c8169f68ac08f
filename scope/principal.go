package scope

// Origin names the side that chose the id of an agent.
type Origin int

// The origins. The zero value is the one that no list of the operator's names.
const (
	FromRepository Origin = iota // a file of a repository: it may take any id
	FromOperator                 // a definition of the operator's, or a program's
)

// Principal is an agent as an operator's list of agents sees it. Such a list is matched against a Principal and never
// against an ID alone: a repository names its agents as it likes.
type Principal struct {
	ID     ID
	Origin Origin
}
