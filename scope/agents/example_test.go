package agents_test

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
)

// kit is the tools that the program has.
func kit() catalog.Tools {
	return catalog.Tools{{Name: "read_file"}, {Name: "write_file", Writes: true}, {Name: "bash", Aliases: []string{"shell"}}}
}

// Load reads the definition files of a base directory.
func ExampleLoad() {
	base, err := os.MkdirTemp("", "base")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(base)
	for name, text := range map[string]string{
		"research-01.md": "---\nname: research-01\ntools: [read_file, builtin:shell]\npolicy: {tools: {ask: [bash]}}\n---\nRead the papers.\n",
		"broken.md":      "---\nname: broken\ntools: [raed_file]\n---\n",
	} {
		file := filepath.Join(base, "agents.d", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			fmt.Println(err)
			return
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			fmt.Println(err)
			return
		}
	}
	all, errs := agents.Load(base, agents.Host{Tools: kit()})
	for _, err := range errs {
		fmt.Println(err)
	}
	grants := all.Agents["research-01"].Grants
	for _, tool := range []string{"read_file", "bash", "write_file"} {
		d := grants.Tool(tool)
		fmt.Printf("%s: allow %v, ask %v (%s)\n", tool, d.Allow, d.Ask, d.Rule)
	}
	// Output:
	// agents.d/broken.md:3: tools: "raed_file" matches no tool: did you mean read_file
	// read_file: allow true, ask false (tools: [read_file, builtin:shell])
	// bash: allow false, ask true (policy.tools.ask: bash)
	// write_file: allow false, ask false (tools: [read_file, builtin:shell])
}

// A program may write a definition in code.
func ExampleDefinition_Grants() {
	def := agents.Definition{
		Name: "research-01",
		View: agents.ViewSpec{Access: scope.Read},
		Reach: agents.Reach{
			Tools: []string{"*_file"},
			Rates: []scope.Rate{{Pattern: "read_file", N: 30, Per: time.Minute}},
		},
	}
	grants := def.Grants(agents.Host{Tools: kit()})
	for _, tool := range []string{"read_file", "write_file", "bash"} {
		d := grants.Tool(tool)
		fmt.Println(tool, d.Allow, d.Kind, grants.RatesOf(tool))
	}
	// Output:
	// read_file true tool [read_file: 30/minute]
	// write_file false access []
	// bash false tool []
}
