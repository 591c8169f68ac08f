package scope

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Block returns what an agent is told of its lists, in the form
//
//	<scope>
//	skills: check-feeds, summarize
//	mcp servers: search
//	members: researcher, writer
//	</scope>
//
// with a line for each list that restricts, by the names that are left of it. It
// is "" when none does. What tools there are, an agent is told by its tools.
func (g *Grants) Block() string {
	if g == nil || g.primary {
		return ""
	}
	var b strings.Builder
	line := func(label string, given bool, names []string) {
		if !given {
			return
		}
		text := strings.Join(names, ", ")
		if text == "" {
			text = "none"
		}
		b.WriteString(label + ": " + text + "\n")
	}
	line("skills", g.skills != nil, g.Skills())
	line("mcp servers", g.mcps != nil, slices.Sorted(maps.Keys(g.Servers())))
	members := make([]string, 0)
	for _, id := range g.Members() {
		members = append(members, string(id))
	}
	line("members", g.members != nil && g.reach.Members != nil, members)
	if b.Len() == 0 {
		return ""
	}
	return "<scope>\n" + b.String() + "</scope>"
}

// Prompt returns the body of the definition and the block, with an empty line
// between them.
func (g *Grants) Prompt() string {
	if g == nil {
		return ""
	}
	text, block := g.prompt, g.Block()
	if text != "" && block != "" {
		text += "\n\n"
	}
	return text + block
}

// hash returns the version, and a sum over what the version leaves out as well.
func (g *Grants) hash(def *Definition) (version, sum string) {
	servers := Servers(g.Servers())
	bare := servers.clone()
	for _, s := range bare {
		for key := range s.Env {
			s.Env[key] = ""
		}
	}
	r := def.Reach
	r.Servers = nil // they are among the others
	version = digest(struct {
		Files   PolicySpec
		User    string
		Network Network
		Reach   Reach
		Primary bool
		Tools   []string
		Skills  []string
		Members []ID
		Servers Servers
	}{def.View.PolicySpec(), def.User, def.Network, r, g.primary, g.Tools(), g.Skills(), g.Members(), bare})
	return version, digest([]any{version, servers})
}

func digest(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen: values, texts and numbers
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
