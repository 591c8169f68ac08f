package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp"
)

// toolHelp prints a tool's description and arguments.
func (a *app) toolHelp(ctx context.Context, client *mcp.Client, name string, asJSON bool) error {
	all, _, err := client.List(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(t mcp.Listed) bool { return t.Named(name) })
	if i < 0 {
		var names []string
		for _, t := range all {
			names = append(names, t.Name)
		}
		hint := "--list lists the tools"
		if near := tools.Nearest(name, names); near != "" {
			hint = fmt.Sprintf("did you mean %s?", near)
		}
		return &exitError{exitUsage, fmt.Errorf("there is no tool %q here: %s", name, hint)}
	}
	if asJSON {
		return a.printJSON(all[i])
	}
	var input schema
	text, err := json.Marshal(all[i].Input)
	if err == nil {
		err = json.Unmarshal(text, &input)
	}
	if err != nil {
		return fmt.Errorf("the schema of %s: %w: --json prints it as it is", all[i].Name, err)
	}
	fmt.Fprintf(a.out, "%s\n\n", steady(all[i].About))
	return input.print(a, all[i].Name)
}

// schema is the part of a JSON schema that is printed. It may come from a server
// and is not trusted.
type schema struct {
	Description string                     `json:"description"`
	Type        any                        `json:"type"` // a name, or a list of names
	Properties  map[string]json.RawMessage `json:"properties"`
	Required    []string                   `json:"required"`
	Items       json.RawMessage            `json:"items"`
	Enum        []any                      `json:"enum"`
	Default     any                        `json:"default"`
	Minimum     *float64                   `json:"minimum"`
	Maximum     *float64                   `json:"maximum"`
}

// print prints the arguments.
func (s *schema) print(a *app, tool string) error {
	if len(s.Properties) == 0 {
		_, err := fmt.Fprintln(a.out, "It has no arguments.")
		return err
	}
	fmt.Fprintln(a.out, "Arguments:")
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	s.rows(w, "  ")
	if err := w.Flush(); err != nil {
		return err
	}
	usage := "scopefs call " + tool
	for _, name := range s.names() {
		if slices.Contains(s.Required, name) {
			usage += " " + name + s.property(name).separator() + strings.ToUpper(name)
		}
	}
	_, err := fmt.Fprintf(a.out, "\nUsage: %s --agent AGENT\n", printable.Text(usage))
	return err
}

// maxIndent limits the depth of nested objects that are printed.
const maxIndent = 8

// rows writes a row for each property, followed by the rows of nested objects.
func (s *schema) rows(w io.Writer, indent string) {
	for _, name := range s.names() {
		p := s.property(name)
		about := []string{p.kind()}
		if slices.Contains(s.Required, name) {
			about = append(about, "required")
		}
		about = append(about, p.limits()...)
		separator := ""
		if indent == "  " {
			separator = p.separator()
		}
		fmt.Fprintf(w, "%s%s%s\t%s\t%s\n", indent, printable.Text(name), separator, printable.Text(strings.Join(about, ", ")), printable.Text(p.Description))
		if len(indent) < maxIndent {
			p.rows(w, indent+"  ")
			p.items().rows(w, indent+"  ")
		}
	}
}

// names returns the names of the properties, required ones first.
func (s *schema) names() []string {
	return slices.SortedFunc(maps.Keys(s.Properties), func(x, y string) int {
		if rx, ry := slices.Contains(s.Required, x), slices.Contains(s.Required, y); rx != ry {
			return map[bool]int{true: -1, false: 1}[rx]
		}
		return strings.Compare(x, y)
	})
}

// property decodes a property's schema. Anything but an object, such as true, is the
// empty schema.
func (s *schema) property(name string) *schema { return schemaIn(s.Properties[name]) }

// items returns the schema of a list's elements.
func (s *schema) items() *schema { return schemaIn(s.Items) }

func schemaIn(text json.RawMessage) *schema {
	var s schema
	if json.Unmarshal(text, &s) != nil {
		return &schema{}
	}
	return &s
}

// separator returns the text between an argument's name and value; see arguments.
func (s *schema) separator() string {
	if s.Type == "string" {
		return "="
	}
	return ":="
}

// kind returns a value's type in words.
func (s *schema) kind() string {
	if s.Type == "array" {
		if items := s.items(); items.Type != nil {
			return "list of " + items.kind()
		}
		return "list"
	}
	switch kind := s.Type.(type) {
	case string:
		if kind == "string" {
			return "text"
		}
		return kind
	case []any:
		return strings.Trim(fmt.Sprint(kind), "[]")
	}
	return "any JSON"
}

// limits returns a value's default and limits in words.
func (s *schema) limits() (all []string) {
	if s.Enum != nil {
		all = append(all, "one of "+strings.Join(words(s.Enum), "|"))
	}
	if s.Minimum != nil {
		all = append(all, "at least "+strconv.FormatFloat(*s.Minimum, 'f', -1, 64))
	}
	if s.Maximum != nil {
		all = append(all, "at most "+strconv.FormatFloat(*s.Maximum, 'f', -1, 64))
	}
	if s.Default != nil {
		all = append(all, fmt.Sprintf("default %v", s.Default))
	}
	return all
}

func words(list []any) (all []string) {
	for _, v := range list {
		all = append(all, fmt.Sprint(v))
	}
	return all
}
