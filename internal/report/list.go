package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/caller"
	"github.com/scopefs/scopefs/internal/doctor"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Agents are the agents of a daemon.
type Agents []api.Agent

// Print prints a row for each agent.
func (list Agents) Print(w io.Writer) error {
	var t Table
	head := []any{"AGENT", "STATE", "VIEW", "SESSIONS", "MOUNT"}
	several := slices.ContainsFunc(list, func(g api.Agent) bool { return g.Base != "" })
	if several {
		head = slices.Insert(head, 4, any("BASE"))
	}
	t.Row(head...)
	for _, g := range list {
		view, where := "-", g.Mount
		if g.ViewPID != 0 {
			view = strconv.Itoa(g.ViewPID)
		}
		switch {
		case g.Hidden == 1:
			where += " (hides 1 entry of the directory below)"
		case g.Hidden > 1:
			where += fmt.Sprintf(" (hides %d entries of the directory below)", g.Hidden)
		}
		if g.Lease != nil {
			where += " (" + g.Lease.String() + ")"
		}
		if g.Shared != nil {
			where += " (" + g.Shared.String() + ")"
		}
		if g.Late != "" {
			where += " (changes by other processes are seen up to a second late: " + g.Late + ")"
		}
		if g.Disk != nil {
			where += " (" + g.Disk.String() + ")"
		}
		if g.Program != "" {
			where += fmt.Sprintf(" (the view runs another build, %s: scopefs down %s, then up)", g.Program, g.ID)
		}
		if len(g.Waits) > 0 {
			where += fmt.Sprintf(" (%s)", Waits(g))
		}
		if g.Error != "" {
			where = strings.TrimSpace(where + " (" + g.Error + ")")
		}
		row := []any{g.ID, g.State, view, cmp.Or(strings.Join(g.Sessions, " "), "-"), where}
		if several {
			row = slices.Insert(row, 4, any(g.Base))
		}
		t.Row(row...)
	}
	return t.Print(w)
}

// Waits says which keys of its definition an agent's view does not have yet.
func Waits(g api.Agent) string {
	return fmt.Sprintf("%s of the definition: waits for scopefs down %s, then up", strings.Join(g.Waits, ", "), g.ID)
}

// Definition is an agent that is defined, or a file without an agent that does not load.
type Definition struct {
	Agent       scope.ID `json:"agent,omitempty"`
	Description string   `json:"description,omitempty"`
	DisplayName string   `json:"display_name,omitempty"`
	Loaded      bool     `json:"loaded"`
	Error       string   `json:"error,omitempty"`
	Warnings    []string `json:"warnings,omitempty"`
}

// Definitions are the agents of a base.
type Definitions []Definition

// ListDefinitions lists the agents that load, and the errors of those that do not.
func ListDefinitions(all *agents.Snapshot, errs []error) Definitions {
	list := Definitions{}
	for _, def := range all.Agents {
		d := Definition{Agent: def.Name, Description: def.Description, DisplayName: def.DisplayName, Loaded: true}
		for _, err := range all.Warnings {
			if fields.AgentOf(err) == def.Name {
				d.Warnings = append(d.Warnings, err.Error())
			}
		}
		list = append(list, d)
	}
	for _, err := range errs {
		list = append(list, Definition{Agent: fields.AgentOf(err), Error: err.Error()})
	}
	slices.SortStableFunc(list, func(x, y Definition) int { return strings.Compare(string(x.Agent), string(y.Agent)) })
	return list
}

// Print prints a row for each agent.
func (list Definitions) Print(w io.Writer) error {
	var t Table
	t.Row("AGENT", "STATE", "DESCRIPTION")
	for _, d := range list {
		state, about := "ok", d.Description
		if !d.Loaded {
			state, about = "not loaded", d.Error
		}
		t.Row(cmp.Or(d.Agent, "-"), state, about)
	}
	return t.Print(w)
}

// Finding is an error or a warning of scopefs agents check.
type Finding struct {
	Agent   scope.ID `json:"agent,omitempty"`
	Error   string   `json:"error,omitempty"` // it would not load
	Warning string   `json:"warning,omitempty"`
}

// Findings are those of several files.
type Findings []Finding

// Found returns errors and warnings.
func Found(errs, warnings []error) Findings {
	list := Findings{}
	for _, err := range errs {
		list = append(list, Finding{Agent: fields.AgentOf(err), Error: err.Error()})
	}
	for _, err := range warnings {
		list = append(list, Finding{Agent: fields.AgentOf(err), Warning: err.Error()})
	}
	return list
}

// Print prints a line for each.
func (list Findings) Print(w io.Writer) error {
	for _, f := range list {
		text := f.Error
		if f.Warning != "" {
			text = "warning: " + f.Warning
		}
		if _, err := fmt.Fprintln(w, printable.Text(text)); err != nil {
			return err
		}
	}
	return nil
}

// Stores are the shared stores of a daemon.
type Stores []api.Store

// Print prints a row for each store.
func (list Stores) Print(w io.Writer) error {
	var t Table
	t.Row("STORE", "KIND", "HEALTH", "AGENTS", "TOOLS")
	for _, s := range list {
		t.Row(s.Name, s.Kind, cmp.Or(s.Error, "ok"), cmp.Or(strings.Join(s.Agents, ","), "-"), strings.Join(s.Tools, ","))
	}
	return t.Print(w)
}

// Approvals are calls that wait, and what is approved.
type Approvals []approvals.Approval

// Print prints a row for each approval, and nothing without one.
func (list Approvals) Print(w io.Writer) error {
	var t Table
	for i, p := range list {
		if i == 0 {
			t.Row("ID", "STATE", "AGENT", "TOOL", "ABOUT", "EXPIRES")
		}
		t.Row(p.ID, p.State, p.Whose(), p.Tool, strconv.Quote(About(p)), expires(p))
	}
	return t.Print(w)
}

// Host is what the tries of a host found. Another user can write the lines of that user's process.
type Host []doctor.Line

// Print prints a row for each try.
func (list Host) Print(w io.Writer) error {
	var t Table
	for _, l := range list {
		detail := l.Detail
		if l.Remedy != "" {
			detail += ": " + l.Remedy
		}
		t.Row(l.Status, l.User, l.Check, detail)
	}
	return t.Print(w)
}

// Tools are the tools that an agent may call.
type Tools []caller.Listed

// Print prints a line for each tool.
func (list Tools) Print(w io.Writer) error {
	for _, t := range list {
		first, _, _ := strings.Cut(t.About, "\n")
		if _, err := fmt.Fprintf(w, "%-20s %s\n", printable.Text(t.Name), printable.Text(first)); err != nil {
			return err
		}
	}
	return nil
}

// Streams are the receivers of the log.
type Streams []api.Stream

// Print prints a row for each stream, if there are any.
func (list Streams) Print(w io.Writer) error {
	if len(list) == 0 {
		return nil
	}
	t := Table{}
	t.Row("STREAM", "STATE", "SENT", "WAITING", "OLDEST", "")
	for _, s := range list {
		state := "sends"
		switch {
		case s.Late:
			state = "late"
		case s.Error != "":
			state = "retries"
		}
		age := time.Duration(s.Age * float64(time.Second)).Round(time.Second)
		t.Row(s.Name, state, s.Sent, s.Lag, age, strings.TrimSpace(s.Base+" "+s.Error))
	}
	return t.Print(w)
}

// Tokens are tokens for HTTP.
type Tokens []api.Token

// Print prints a row for each token.
func (list Tokens) Print(w io.Writer) error {
	var t Table
	t.Row("TOKEN", "AGENT", "ORIGIN", "MADE", "ENDS")
	for _, one := range list {
		t.Row(one.ID, one.Agent, one.From(), one.Made.Local().Format(time.DateTime), one.Ends.Local().Format(time.DateTime))
	}
	return t.Print(w)
}

// Doors are the addresses at which daemons serve tools.
type Doors []api.Door

// Print prints a line for each door.
func (list Doors) Print(w io.Writer) (err error) {
	for _, d := range list {
		name := "tools by " + d.By
		if d.Base != "" {
			name += " of " + d.Base
		}
		if _, err = fmt.Fprintf(w, "%s: %s\n", printable.Text(name), printable.Text(d.Address)); err != nil {
			return err
		}
	}
	return nil
}
