package messages

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

// Grants say which channels and inboxes agents may use beside their own part.
// They are allow-lists: an unlisted place is granted to no agent.
type Grants struct {
	Channels map[string]func(scope.Principal) bool // by name: who publishes and reads
	Inboxes  map[string]func(scope.Principal) bool // by owner: who else publishes
}

// own returns the place of an agent's subject, or of all its subjects for the
// subject "".
func own(subject tools.Resource) (Place, error) {
	part, err := subject.Part()
	if err != nil {
		return Place{}, err
	}
	all := part + ">"
	p := Place{Own: true, Stream: StreamOf(scope.ID(strings.TrimSuffix(part, "."))), Subjects: all, Filter: subject.Name()}
	if subject.Key() == "" {
		p.Filter = all
	}
	return p, nil
}

// StreamOf returns the name of the stream of an agent's subjects.
func StreamOf(agent scope.ID) string { return string(agent) + "_messages" }

// channel returns the place of a channel that all agents that bound the call
// were granted.
func (g Grants) channel(env tools.Env, name string) (Place, error) {
	if !env.All(g.Channels[name]) {
		d := env.Ungranted("stores.messages.channels", name, g.Channels[name] != nil)
		return Place{}, tools.Refused(d, tools.Denied, "there is no channel %.64q here", name).
			Suggest("channels: " + g.channels(env))
	}
	return shared("_channel", name), nil
}

// channels lists the channels of a call's agent.
func (g Grants) channels(env tools.Env) string {
	var names []string
	for name, granted := range g.Channels {
		if env.All(granted) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// inboxOf returns the inbox of another agent.
func (g Grants) inboxOf(env tools.Env, owner string) (Place, error) {
	if !env.All(g.Inboxes[owner]) {
		d := env.Ungranted("stores.messages.inboxes", owner, g.Inboxes[owner] != nil)
		return Place{}, tools.Refused(d, tools.Denied, "you may not publish to the inbox of %.64q", owner).
			Suggest("ask your operator, who lists who may")
	}
	return shared("_inbox", owner), nil
}

// inbox returns the inbox of a call's agent. That of an id is the operator's agent's.
func (g Grants) inbox(env tools.Env) (Place, error) {
	named := env.All(func(p scope.Principal) bool { return p.ID != env.Agent || p.Origin == scope.FromOperator })
	if g.Inboxes[string(env.Agent)] == nil || !named {
		return Place{}, tools.Errorf(tools.NotFound, "you have no inbox: nobody may publish to it").
			Suggest("ask your operator, who lists who may")
	}
	return shared("_inbox", string(env.Agent)), nil
}

// shared returns the place of a channel or an inbox. Its name was compared with
// the operator's, so it is one token.
func shared(kind, name string) Place {
	subject := kind + "." + name
	return Place{Stream: kind + "_" + name, Subjects: subject, Filter: subject}
}

// consumerName returns the name of the consumer that holds an agent's position
// among the messages of a filter.
func consumerName(agent scope.ID, filter string) string {
	sum := sha256.Sum256([]byte(filter))
	return string(agent) + "_" + hex.EncodeToString(sum[:16])
}

// cursor returns the cursor of a position. It belongs to one reader: a position
// of another place would acknowledge messages that were not returned.
func cursor(position uint64, reader string) string {
	return strconv.FormatUint(position, 10) + "-" + cursorMark(reader)
}

func cursorMark(reader string) string {
	sum := sha256.Sum256([]byte(reader))
	return hex.EncodeToString(sum[:6])
}

// parseCursor returns the position of a reader's cursor.
func parseCursor(text, reader string) (uint64, error) {
	digits, mark, _ := strings.Cut(text, "-")
	position, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || mark != cursorMark(reader) || cursor(position, reader) != text {
		return 0, BadCursor()
	}
	return position, nil
}

// BadCursor is the error of a cursor of another place.
func BadCursor() error {
	return tools.Errorf(tools.Invalid, "cursor: is not of this subject, channel or inbox").
		Suggest("call without cursor: you get what was not acknowledged")
}
