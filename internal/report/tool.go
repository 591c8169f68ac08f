package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/internal/caller"
	"github.com/scopefs/scopefs/internal/printable"
)

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

// Tool is a tool of an agent, with its description and arguments.
type Tool caller.Listed

// Print prints the description, the arguments and the usage.
func (t Tool) Print(w io.Writer) error {
	var s schema
	text, err := json.Marshal(t.Input)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return fmt.Errorf("the schema of %s: %w: --json prints it as it is", t.Name, err)
	}
	fmt.Fprintf(w, "%s\n\n", printable.Lines(t.About))
	if len(s.Properties) == 0 {
		_, err := fmt.Fprintln(w, "It has no arguments.")
		return err
	}
	fmt.Fprintln(w, "Arguments:")
	var table Table
	s.rows(&table, "  ")
	if err := table.Print(w); err != nil {
		return err
	}
	usage := []string{"scopefs", "call", t.Name}
	for _, name := range s.names() {
		if slices.Contains(s.Required, name) {
			usage = append(usage, name+s.property(name).separator()+strings.ToUpper(name))
		}
	}
	if line := printable.Command(append(usage, "--agent", "AGENT")...); line != "" {
		_, err = fmt.Fprintf(w, "\nUsage: %s\n", line)
	}
	return err
}

// maxIndent limits the depth of nested objects that are printed.
const maxIndent = 8

// rows writes a row for each property, followed by the rows of nested objects.
func (s *schema) rows(t *Table, indent string) {
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
		t.Row(indent+name+separator, strings.Join(about, ", "), p.Description)
		if len(indent) < maxIndent {
			p.rows(t, indent+"  ")
			p.items().rows(t, indent+"  ")
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
		var words []string
		for _, v := range s.Enum {
			words = append(words, fmt.Sprint(v))
		}
		all = append(all, "one of "+strings.Join(words, "|"))
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
