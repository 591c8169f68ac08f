package report

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"strings"

	"github.com/scopefs/scopefs/internal/amend"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Verdict is what the rules of an agent say about a path or a URL.
type Verdict struct {
	Agent   scope.ID `json:"agent"`
	Path    string   `json:"path"`    // or the URL
	Op      string   `json:"op"`      // or the method
	Verdict string   `json:"verdict"` // allow, ask, deny or violation
	Rule    string   `json:"rule"`
	Held    bool     `json:"held,omitempty"`    // a change is held until the operator takes it over
	Target  string   `json:"target,omitempty"`  // where the path leads, or the address of the URL's host
	Remedy  string   `json:"remedy,omitempty"`  // of a URL, and of ask
	Command string   `json:"command,omitempty"` // that makes it
}

// opening has the operation that opens a file, by the operation on the open file.
var opening = map[scope.Op]scope.Op{scope.OpRead: scope.OpOpen, scope.OpWrite: scope.OpOpenWrite}

// CheckPath decides about an operation on a path of an agent's view. It performs no operation.
func CheckPath(p config.Paths, id scope.ID, name, opName string) (*Verdict, error) {
	if name == "" {
		return nil, errors.New("which path: give one relative to the view, or below /workspace")
	}
	op, err := scope.ParseOp(opName)
	if err != nil {
		return nil, err
	}
	def, err := definitions.Agent(p, id)
	if err != nil {
		return nil, err
	}
	policy, err := scope.Compile(def.View.PolicySpec())
	if err != nil {
		return nil, err
	}
	v := &Verdict{Agent: id, Path: name, Op: op.String()}
	host, err := definitions.Host(p)
	if err != nil {
		return nil, err
	}
	rel, err := v.resolve(p.Base, def.Definition, name, host.Expose)
	if err != nil || v.Verdict != "" {
		return v, err
	}
	d := policy.File(op, rel)
	if opens, ok := opening[op]; ok && d.Allow { // what an open file allows, its open decided
		d = policy.File(opens, rel)
	}
	v.Verdict, v.Rule = verdictOf(d), d.Rule
	v.Held = d.Allow && op.Mutates() && policy.Held(rel) && def.View.Changes != agents.ChangesHeld
	if d.Ask {
		v.Remedy = "approve it when the agent opens or changes it: scopefs approvals"
	}
	return v, nil
}

// resolve follows the symbolic links on the path, as a client of the view does.
func (v *Verdict) resolve(base string, def *agents.Definition, name string, shown []string) (string, error) {
	root, err := def.OpenRoot(base)
	if errors.Is(err, fs.ErrNotExist) && def.Dir == "" {
		return "", fmt.Errorf("%w: the first scopefs up or run makes it", err)
	}
	if err != nil {
		return "", err
	}
	defer root.Close()
	root.Shown = shown
	root.Beside = def.Beside
	target, err := root.Resolve(name)
	var violation *beneath.Violation
	switch {
	case errors.As(err, &violation):
		v.Verdict, v.Rule, v.Target = "violation", string(violation.Rule), violation.Target
	case err != nil:
		return "", err
	case target.System:
		v.Verdict, v.Rule, v.Target = "allow", "the sandbox has it", target.Rel
	case target.Rel != strings.TrimPrefix(path.Clean("/"+name), "/"):
		v.Target = target.Rel
	}
	return target.Rel, nil
}

// CheckURL decides about a request of an agent's sandbox. It connects to nothing. words are those by which a command
// names the agent.
func CheckURL(p config.Paths, id scope.ID, address, method string, words ...string) (*Verdict, error) {
	known := definitions.Read(p, nil)
	def, err := known.Agent(id)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	d, route, err := def.Grants.Hosts().URL(strings.ToUpper(method), u)
	if err != nil {
		return nil, err
	}
	v := &Verdict{Agent: id, Path: u.Redacted(), Op: strings.ToUpper(method), Verdict: verdictOf(d), Rule: d.Rule, Remedy: d.Remedy}
	if !d.Allow && d.Kind == scope.KindHost {
		v.Command, _ = amend.Command(p, known, id, amend.Host, u.Host, words...)
	}
	if at := route.Address; d.Allow && at.IsValid() {
		v.Target = at.Addr().String()
		if at.Port() != 0 {
			v.Target = at.String()
		}
	}
	return v, nil
}

// Print prints the verdict.
func (v *Verdict) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s %s %s (%s)\n", v.Verdict, v.Op, v.Path, v.Rule)
	if v.Held {
		_, err = fmt.Fprintln(w, "held: scopefs commit takes it over")
	}
	if v.Remedy != "" {
		_, err = fmt.Fprintln(w, "to allow it: "+v.Remedy)
	}
	if v.Command != "" {
		_, err = fmt.Fprintln(w, "by a command: "+printable.Text(v.Command))
	}
	return err
}
