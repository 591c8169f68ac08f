package tools

import (
	"context"
)

type stillKey struct{}

// Still reports whether the call of ctx may go on. A tool calls it after a wait, for the
// log, a slot or a server, and before it acts: the agent may control how long the call
// waits, and the rules may have changed meanwhile.
func Still(ctx context.Context) error {
	still, ok := ctx.Value(stillKey{}).(func() error)
	if !ok {
		return nil
	}
	return still()
}

// still decides again if the rules have changed since r was allowed. The program of the
// tool that does the call must not have changed since then.
func (s *Set) still(r *invocation) error {
	now := s.rules()
	if by := r.doer(); by != "" && (s.versionOf(by) != r.doing || now.Version() != r.version &&
		(len(now.FiltersOf(by)) > 0 || !s.judge(now, by).Allow)) {
		return &Error{Code: Conflict, Message: "the activity has changed meanwhile: call again"}
	}
	if now.Version() == r.version {
		return nil
	}
	if len(now.FiltersOf(r.name)) == 0 && s.judge(now, r.name).Allow && r.mayStill(now) {
		if err := r.judge(r.told); err != nil {
			return err
		}
		return nil
	}
	return Refused(s.judge(now, r.name), Conflict, "the rules have changed meanwhile: call again")
}
