package imports

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope/catalog"
)

// document is a parsed source: a mapping or a list.
type document struct {
	markdown bool       // the source has keys between --- lines, and a body
	top      *yaml.Node // has no aliases and no duplicate keys
	body     string
	lost     []Loss
	ours     catalog.Tools // of the Source
	env      func(string) (string, bool)
}

func readDocument(text string) (*document, error) {
	text = strings.TrimPrefix(text, "\ufeff")
	doc := &document{}
	front := text
	if keys, body, err := frontmatter.Cut([]byte(text)); err == nil {
		doc.markdown, doc.body, front = true, strings.TrimSpace(string(body)), string(keys)
	}
	var err error
	if doc.top, err = parseYAML(front); err == nil || !doc.markdown {
		return doc, err
	}
	// Many agent files have an unquoted description with a colon. Their programs accept it.
	if top, e := parseYAML(quoteTexts(front)); e == nil {
		doc.top = top
		doc.lost = []Loss{{"description", "is not YAML without quotes", "its line is one string"}}
		return doc, nil
	}
	return nil, err
}

// yamlOfTOML converts the text of a TOML document.
func yamlOfTOML(text []byte) ([]byte, error) {
	var top map[string]any
	if err := toml.Unmarshal(text, &top); err != nil {
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ := at.Position()
			return nil, fmt.Errorf("line %d: is no TOML: %w", line, err)
		}
		return nil, fmt.Errorf("is no TOML: %w", err)
	}
	return yaml.Marshal(top)
}

// quoteTexts quotes the unquoted values of name and description.
func quoteTexts(front string) string {
	plain := regexp.MustCompile(`(?m)^(name|description):[ \t]+([^\s'"|>\[{#].*?)[ \t\r]*$`)
	return plain.ReplaceAllStringFunc(front, func(line string) string {
		m := plain.FindStringSubmatch(line)
		return m[1] + ": '" + strings.ReplaceAll(m[2], "'", "''") + "'"
	})
}

// parseYAML returns the top of a document in which no mapping has a key twice.
func parseYAML(text string) (*yaml.Node, error) {
	top, err := frontmatter.Parse([]byte(text))
	if err == nil && top == nil {
		err = errors.New("is empty: give a file that describes an agent")
	}
	if err == nil {
		err = checkKeys(top)
	}
	return top, err
}

// checkKeys returns an error for ambiguous keys.
func checkKeys(n *yaml.Node) error {
	seen := map[string]bool{}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if c.Kind != yaml.ScalarNode || c.Tag == "!!merge" {
				return fmt.Errorf("line %d: a key is not a string: write one", c.Line)
			}
			if seen[c.Value] {
				return fmt.Errorf("line %d: %q is here twice: remove one", c.Line, c.Value)
			}
			seen[c.Value] = true
		}
		if err := checkKeys(c); err != nil {
			return err
		}
	}
	return nil
}

// fields maps the keys that a converter knows to functions that read their values.
type fields map[string]func(*yaml.Node) error

// read calls the function of each key of n, in the file's order, and unknown for other keys.
func (f fields) read(d *draft, at string, n *yaml.Node) error { return f.readFor(d, at, n, "*") }

// readFor is read for keys that affect only the tools of some patterns.
func (f fields) readFor(d *draft, at string, n *yaml.Node, tools ...string) error {
	return eachKey(n, func(key string, value *yaml.Node) error {
		read, ok := f[key]
		if !ok {
			d.unknown(at+key, key, tools...)
			return nil
		}
		return read(value)
	})
}

// eachKey calls f for each key of a mapping. It prefixes errors with the key.
func eachKey(n *yaml.Node, f func(key string, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: want keys with values", n.Line)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if err := f(n.Content[i].Value, n.Content[i+1]); err != nil {
			return fmt.Errorf("%s: %w", n.Content[i].Value, err)
		}
	}
	return nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func textOf(n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		return "", fmt.Errorf("line %d: want a string", n.Line)
	}
	return n.Value, nil
}

// into returns a function that stores what read returns.
func into[T any](out *T, read func(*yaml.Node) (T, error)) func(*yaml.Node) error {
	return func(n *yaml.Node) (err error) {
		*out, err = read(n)
		return err
	}
}

func textField(out *string) func(*yaml.Node) error { return into(out, textOf) }

func listField(out *[]string) func(*yaml.Node) error { return into(out, listOf) }

func nodeField(out **yaml.Node) func(*yaml.Node) error {
	return func(n *yaml.Node) error { *out = n; return nil }
}

// listOf returns the strings of a list, never nil.
func listOf(n *yaml.Node) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: want a list", n.Line)
	}
	list := make([]string, 0, len(n.Content))
	for _, c := range n.Content {
		s, err := textOf(c)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func boolOf(n *yaml.Node) (yes bool, err error) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
		return false, fmt.Errorf("line %d: want true or false", n.Line)
	}
	return yes, n.Decode(&yes)
}
