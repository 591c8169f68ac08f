// Package selftest tries to escape on this host: the attempts of corpus.yaml run in a view and a sandbox of throw-away
// agents, or in another sandbox, and the host looks at what came of them. What an attempt says of itself counts for nothing.
package selftest

import (
	_ "embed"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed corpus.yaml
var corpus []byte

// Attempt is one attempt to escape.
type Attempt struct {
	ID    string `json:"id"`
	Class string `json:"class"`
	Try   string `json:"try"`
	Like  string `json:"like,omitempty"` // a CVE, or a published attack

	needs  []string
	own    bool
	script string // or a call, or calls
	as     string
	call   []string
	calls  string
	late   bool // it did not end in time
}

// entry is one of corpus.yaml.
type entry struct {
	ID     string
	Class  string
	Try    string
	Like   string
	Needs  []string
	Own    bool
	Ways   map[string]string
	Script string
	As     string
	Call   []string
	Calls  string
}

// Attempts returns all attempts.
func Attempts() (list []Attempt, err error) {
	var entries []entry
	if err := yaml.Unmarshal(corpus, &entries); err != nil {
		return nil, fmt.Errorf("corpus.yaml: %w", err)
	}
	for _, e := range entries {
		a := Attempt{ID: e.ID, Class: e.Class, Try: e.Try, Like: e.Like, needs: e.Needs, own: e.Own, script: e.Script,
			as: e.As, call: e.Call, calls: e.Calls}
		for _, name := range slices.Sorted(maps.Keys(e.Ways)) {
			way := strings.NewReplacer("$WAY", e.Ways[name])
			one := a
			one.ID, one.Try = e.ID+"-"+name, e.Try+": "+name
			one.script, one.calls, one.call = way.Replace(e.Script), way.Replace(e.Calls), nil
			for _, word := range e.Call {
				one.call = append(one.call, way.Replace(word))
			}
			list = append(list, one)
		}
		if len(e.Ways) == 0 {
			list = append(list, a)
		}
	}
	return list, nil
}

// missing returns a program that the attempt needs and this host lacks; "" if there is none.
func (a Attempt) missing() string {
	for _, name := range a.needs {
		if _, err := exec.LookPath(name); err != nil {
			return name
		}
	}
	return ""
}
