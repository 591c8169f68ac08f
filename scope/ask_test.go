package scope

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAsk: a rule with ask lets names and attributes be seen, and an approval allows what the other rules do, and no more.
func TestAsk(t *testing.T) {
	const yes, no, ask = 'y', 'n', 'a'
	said := func(d Decision) rune {
		switch {
		case d.Allow && !d.Ask:
			return yes
		case d.Ask && !d.Allow:
			return ask
		}
		return no
	}
	base := []PathRule{{Pattern: "docs/**", Access: Ask}, {Pattern: "docs/key", Access: Hide}, {Pattern: "docs/old/**", Access: Read}, {Pattern: "docs/.env", Access: Seal}}
	for name, test := range map[string]struct {
		access  Access
		closed  bool
		granted []Grant
		rel     string
		want    string // lookup, readdir, open, read of a handle, open-write, create, rename-from
	}{
		"asks":                        {rel: "docs/a", want: "yyayaaa"},
		"below":                       {rel: "docs/x/y", want: "yyayaaa"},
		"in a view to read":           {access: Read, rel: "docs/a", want: "yyaynnn"},
		"another path":                {rel: "a", want: "yyyyyyy"},
		"hide wins":                   {rel: "docs/key", want: "nnnnnnn"},
		"seal wins":                   {rel: "docs/.env", want: "ynnnnnn"},
		"read stays":                  {rel: "docs/old/a", want: "yyaynnn"},
		"granted to read":             {granted: []Grant{{Pattern: "docs/a"}}, rel: "docs/a", want: "yyyyaaa"},
		"granted to write":            {granted: []Grant{{Pattern: "docs/a", Write: true}}, rel: "docs/a", want: "yyyyyyy"},
		"another is granted":          {granted: []Grant{{Pattern: "docs/b", Write: true}}, rel: "docs/a", want: "yyayaaa"},
		"all granted, hide wins":      {granted: []Grant{{Pattern: "**", Write: true}}, rel: "docs/key", want: "nnnnnnn"},
		"all granted, read stays":     {granted: []Grant{{Pattern: "**", Write: true}}, rel: "docs/old/a", want: "yyyynnn"},
		"the view is no path":         {granted: []Grant{{}}, rel: "docs/a", want: "yyayaaa"},
		"closed":                      {closed: true, rel: "a", want: "aaaaaaa"},
		"closed, the root":            {closed: true, want: "aaaaaaa"},
		"closed, hidden says nothing": {closed: true, rel: "docs/key", want: "aaaaaaa"},
		"closed, a path is granted":   {closed: true, granted: []Grant{{Pattern: "**", Write: true}}, rel: "a", want: "aaaaaaa"},
		"opened":                      {closed: true, granted: []Grant{{}}, rel: "a", want: "yyyyyyy"},
		"opened, a path asks":         {closed: true, granted: []Grant{{}}, rel: "docs/a", want: "yyayaaa"},
	} {
		p := mustCompile(t, PolicySpec{Access: test.access, Paths: base, Closed: test.closed, Granted: test.granted})
		got := ""
		for _, op := range []Op{OpLookup, OpReadDir, OpOpen, OpRead, OpOpenWrite, OpCreate, OpRenameFrom} {
			got += string(said(p.File(op, test.rel)))
		}
		assert.Equal(t, test.want, got, name)
	}
	p := mustCompile(t, PolicySpec{Paths: base})
	assert.False(t, mustCompile(t, PolicySpec{Paths: []PathRule{{Pattern: "a/b/*", Access: Ask}}}).Move("a").Allow)
	assert.Equal(t, Ask, p.Strict("docs/a"))
	_, err := Compile(PolicySpec{Access: Ask})
	require.Error(t, err)
}

// TestAskKeepsRules: what the other rules say about a link's target and a file of git holds for paths under ask, too, also if an approval
// ends between the decision and the operation.
func TestAskKeepsRules(t *testing.T) {
	spec := PolicySpec{Git: &GitRules{Hooks: true, Config: []string{"user.name"}}, Protect: []Protect{{Name: "ci", Paths: []string{"ci.yml"}, Hold: true}}}
	plain, err := Compile(spec)
	require.NoError(t, err)
	spec.Paths = []PathRule{{Pattern: "ci.yml", Access: Ask}, {Pattern: ".git", Access: Ask}}
	asking, err := Compile(spec)
	require.NoError(t, err)
	spec.Closed = true
	closed, err := Compile(spec)
	require.NoError(t, err)
	for _, p := range []*Policy{plain, asking, closed} {
		assert.False(t, p.Link("l", "ci.yml", "ci.yml").Allow)
		assert.Equal(t, plain.File(OpRename, ".git/config").Judge, p.File(OpRename, ".git/config").Judge)
		assert.Equal(t, plain.File(OpUnlink, ".git/index.lock").Own, p.File(OpUnlink, ".git/index.lock").Own)
	}
	assert.NotZero(t, plain.File(OpRename, ".git/config").Judge)
	assert.True(t, plain.File(OpUnlink, ".git/index.lock").Own)
}
