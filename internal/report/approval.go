package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/scopefs/scopefs/tools/approvals"
)

// Decision says what a decision made.
func Decision(p approvals.Approval) string {
	text := fmt.Sprintf("%s %s of %s: %s", p.ID, p.Tool, p.Whose(), p.State)
	switch p.State {
	case approvals.Stands:
		return text + ", " + ends(p)
	case approvals.Granted, approvals.Denied:
		return text + " " + ends(p)
	}
	return text
}

// ends says when an approval ends.
func ends(p approvals.Approval) string {
	switch {
	case p.Ends != "":
		return "until session " + p.Ends + " ends"
	case p.Expires.IsZero():
		return "until it is revoked"
	}
	return "until " + expires(p)
}

// expires says when an approval ends, in a column.
func expires(p approvals.Approval) string {
	switch {
	case p.Ends != "":
		return "with " + p.Ends
	case p.Expires.IsZero():
		return "never"
	case time.Until(p.Expires) > 12*time.Hour:
		return p.Expires.Local().Format(time.DateTime)
	}
	return p.Expires.Local().Format(time.TimeOnly)
}

// About returns a short description of a call, and what it would see of a context.
func About(p approvals.Approval) string { return about(p) + seen(p) }

// about returns the command of bash, the path and its target, or the arguments.
func about(p approvals.Approval) string {
	if p.Pattern != "" {
		return p.Pattern
	}
	if p.Kind == approvals.KindTool {
		return "all calls"
	}
	command, _ := p.Text("command") // of long arguments, which are cut, there is none
	switch {
	case p.Tool == "bash" && command != "":
		return short(command)
	case p.Tool == "bash", p.Path == "":
		return short(string(p.Arguments))
	}
	return where(p)
}

// seen returns what a call would see of a context.
func seen(p approvals.Approval) string {
	var all []string
	for _, part := range p.Context {
		all = append(all, fmt.Sprintf("%s (%d bytes)", part.Name, part.Bytes))
	}
	if all == nil {
		return ""
	}
	return ", sees " + strings.Join(all, ", ")
}

// short returns the beginning of a text.
func short(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:57]) + "..."
	}
	return s
}
