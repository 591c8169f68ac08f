package scope

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPolicyExcess: of two random policies, each path that only one allows has an excess with as much access, and each excess is
// true.
func TestPolicyExcess(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	policy := func() *Policy {
		spec := PolicySpec{Access: []Access{Write, Read}[r.IntN(2)]}
		for range r.IntN(4) {
			spec.Paths = append(spec.Paths, PathRule{Pattern: text(r, 4, "a", "b", "/", "*", "**/", "[ab]", "{a,b/**}", "A"), Access: Access(r.IntN(int(accessCount)))})
		}
		for range r.IntN(2) {
			spec.Protect = append(spec.Protect, Protect{Name: "p", Paths: []string{text(r, 4, "a", "b", "/", "*", "**/")}, Hold: r.IntN(2) == 0})
		}
		if r.IntN(3) == 0 {
			spec.Git = &GitRules{Hooks: true}
		}
		p, err := Compile(spec)
		if err != nil {
			p, _ = Compile(PolicySpec{Access: spec.Access})
		}
		return p
	}
	wider := 0
	for range 4000 {
		now, was := policy(), policy()
		excess := now.Excess(was)
		for _, e := range excess {
			if e.Key == "view" && e.Witness != "" {
				d, old := now.byPaths(OpStat, e.Witness), was.byPaths(OpStat, e.Witness)
				asked := now.asks.find(nil, e.Witness) == nil && was.asks.find(nil, e.Witness) != nil
				require.True(t, d.Access < old.Access || asked, "%+v %+v %+v", now.spec, was.spec, e)
			}
		}
		for range 30 {
			rel := strings.Trim(text(r, 6, "a", "b", "/a", "/b", "/c", "A", ".git", "/x.git"), "/")
			d, old := now.byPaths(OpStat, rel), was.byPaths(OpStat, rel)
			if rel != "" && d.Access < old.Access {
				wider++
				told := func(e Excess) bool {
					return e.Key == "view" && (e.Undecided || e.Witness != "" && slices.Index(accessTexts[:], e.What) <= int(d.Access))
				}
				require.True(t, slices.ContainsFunc(excess, told), "%s: %+v before %+v: %+v %+v", rel, d, old, now.spec, was.spec)
			}
		}
	}
	assert.Greater(t, wider, 1000)
}

// TestPolicyBelow: the rules below a directory decide about each path there as those of the root do.
func TestPolicyBelow(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	matched := 0
	for range 4000 {
		spec := PolicySpec{Access: []Access{Write, Read}[r.IntN(2)]}
		for range 1 + r.IntN(3) {
			pattern := text(r, 5, "a", "b", "/", "*", "**/", "/**", "[ab]", "{a,b/**}", `\*`, "A", "é")
			spec.Paths = append(spec.Paths, PathRule{Pattern: pattern, Access: Access(r.IntN(int(accessCount)))})
			spec.Protect = append(spec.Protect, Protect{Name: "p", Paths: []string{pattern}})
		}
		whole, err := Compile(spec)
		if err != nil {
			continue
		}
		rel := strings.Trim(text(r, 4, "a", "b", "/a", "/b", "A", "/*", "/é"), "/")
		if rel == "" || strings.Contains(rel, "//") {
			continue
		}
		below, err := Compile(spec.Below(rel))
		require.NoError(t, err, "%+v at %s", spec, rel)
		for range 20 {
			at := strings.Trim(text(r, 5, "a", "b", "/a", "/b", "/c", "A", "*", "é"), "/")
			want, got := whole.byPaths(OpStat, rel+"/"+at), below.byPaths(OpStat, at)
			if at != "" {
				require.Equal(t, want.Access, got.Access, "%+v at %s: %s", spec, rel, at)
				matched += min(len(want.Rule), 1)
			}
		}
	}
	assert.Greater(t, matched, 1000)
}

// TestPolicyExcessOne: which rules are lost, opened or covered by others.
func TestPolicyExcessOne(t *testing.T) {
	t.Parallel()
	read, hide, write := Read, Hide, Write
	rules := func(of Access, patterns ...string) (all []PathRule) {
		for _, p := range patterns {
			all = append(all, PathRule{Pattern: p, Access: of})
		}
		return all
	}
	for name, test := range map[string]struct {
		was, now PolicySpec
		want     []string
	}{
		"equal":                    {PolicySpec{Paths: rules(hide, "a")}, PolicySpec{Paths: rules(hide, "a")}, nil},
		"lost":                     {PolicySpec{Paths: rules(hide, "a/*.x")}, PolicySpec{}, []string{"view: paths can be read and changed, such as a/.x; before: a/*.x: hide"}},
		"covered by another":       {PolicySpec{Paths: rules(hide, "**/*.x")}, PolicySpec{Paths: rules(hide, "**/*x")}, nil},
		"covered by several":       {PolicySpec{Paths: rules(hide, "[ab]/c")}, PolicySpec{Paths: rules(hide, "a", "b")}, nil},
		"two":                      {PolicySpec{Paths: append(rules(hide, "a"), rules(read, "b")...)}, PolicySpec{}, []string{"view: paths can be read and changed, such as a; before: a: hide", "view: paths can be read and changed, such as b; before: b: read"}},
		"two alike":                {PolicySpec{Paths: rules(hide, "{a,b}")}, PolicySpec{}, []string{"view: paths can be read and changed, such as a; before: {a,b}: hide"}},
		"read beside hold":         {PolicySpec{Paths: rules(hide, "a")}, PolicySpec{Paths: rules(read, "a"), Protect: []Protect{{Name: "p", Paths: []string{"z"}, Hold: true}}}, []string{"view: paths can be read, such as a; before: a: hide"}},
		"hold":                     {PolicySpec{Paths: rules(read, "z")}, PolicySpec{Protect: []Protect{{Name: "p", Paths: []string{"z"}, Hold: true}}}, []string{"view: paths can be read, and changes are held, such as z; before: z: read", "undecided: view: z: read"}},
		"a list undecided":         {PolicySpec{Protect: []Protect{{Name: "p", Paths: []string{"y", "z"}}}}, PolicySpec{Protect: []Protect{{Name: "p", Paths: []string{"y", "z"}, Hold: true}}}, []string{"view: paths can be read, and changes are held, such as y; before: protect p", "undecided: view: protect p: read"}},
		"the widest":               {PolicySpec{Paths: rules(hide, "[ab]")}, PolicySpec{Paths: rules(read, "a")}, []string{"view: paths can be read and changed, such as b; before: [ab]: hide"}},
		"covered in part":          {PolicySpec{Paths: rules(hide, "[ab]/c")}, PolicySpec{Paths: rules(hide, "a")}, []string{"view: paths can be read and changed, such as b/c; before: [ab]/c: hide"}},
		"less strict":              {PolicySpec{Paths: rules(hide, "a")}, PolicySpec{Paths: rules(read, "a")}, []string{"view: paths can be read, such as a; before: a: hide"}},
		"changed":                  {PolicySpec{Access: read}, PolicySpec{Access: read, Paths: rules(write, "a")}, []string{"view: paths can be read and changed, such as a; before: access: read"}},
		"opened and closed":        {PolicySpec{Access: read}, PolicySpec{Access: read, Paths: append(rules(write, "a/*"), rules(read, "**/*")...)}, nil},
		"default":                  {PolicySpec{Access: read}, PolicySpec{}, []string{"view: paths can be read and changed, such as x; before: access: read"}},
		"default closed":           {PolicySpec{Access: read}, PolicySpec{Paths: rules(read, "**")}, nil},
		"dots":                     {PolicySpec{Paths: rules(hide, "?")}, PolicySpec{Paths: rules(hide, "[^.]")}, nil},
		"two dots":                 {PolicySpec{Paths: rules(hide, ".?")}, PolicySpec{}, []string{"view: paths can be read and changed, such as .x; before: .?: hide"}},
		"protect":                  {PolicySpec{Protect: []Protect{{Name: "p", Paths: []string{"**/a"}}}}, PolicySpec{Paths: rules(read, "**/a")}, []string{"view: paths can be read and changed, such as A; before: protect p"}},
		"asked no more":            {PolicySpec{Paths: rules(Ask, "a")}, PolicySpec{}, []string{"view: paths can be read and changed, such as a; before: a: ask"}},
		"asked, and sealed":        {PolicySpec{Paths: rules(Ask, "a")}, PolicySpec{Paths: rules(Seal, "a")}, nil},
		"asked first":              {PolicySpec{Paths: rules(hide, "a")}, PolicySpec{Paths: rules(Ask, "a")}, []string{"view: paths can be read and changed once you allow it, such as a; before: a: hide"}},
		"opened":                   {PolicySpec{Closed: true}, PolicySpec{}, []string{"view: nothing is asked first; before: access: ask"}},
		"closed both":              {PolicySpec{Closed: true}, PolicySpec{Closed: true}, nil},
		"links":                    {PolicySpec{Hardlinks: HardlinksDeny}, PolicySpec{Hardlinks: HardlinksRead}, []string{"view: hardlinks: read; before: hardlinks: deny"}},
		"git":                      {PolicySpec{Git: &GitRules{Hooks: true, Config: []string{"a.b"}}}, PolicySpec{Git: &GitRules{Config: []string{"a.b", "c.d"}}}, []string{"protect: git's hooks can be changed", "protect: git's configuration can be changed at c.d"}},
		"git's hooks stay":         {PolicySpec{Git: &GitRules{Hooks: true, Config: []string{"a.b"}}}, PolicySpec{Git: &GitRules{Hooks: true, Config: []string{"a.b", "c.d"}}}, []string{"protect: git's configuration can be changed at c.d"}},
		"git's hooks alone":        {PolicySpec{Git: &GitRules{Hooks: true}}, PolicySpec{Git: &GitRules{}}, []string{"protect: git's hooks can be changed"}},
		"no git":                   {PolicySpec{Git: &GitRules{Hooks: true, Config: []string{"a.b"}}}, PolicySpec{}, []string{"protect: git's hooks can be changed", "protect: git's configuration can be changed"}},
		"part of a class":          {PolicySpec{Paths: rules(hide, "[a-c]")}, PolicySpec{Paths: rules(hide, "[ab]")}, []string{"view: paths can be read and changed, such as c; before: [a-c]: hide"}},
		"another spelling":         {PolicySpec{Protect: []Protect{{Name: "p", Paths: []string{"a"}}}}, PolicySpec{Paths: rules(read, "[aA]")}, []string{"view: paths can be read and changed, such as a\u00ad; before: protect p"}},
		"git's files are not held": {PolicySpec{Paths: rules(Hold, "*/b")}, PolicySpec{Paths: rules(Hold, "**"), Git: &GitRules{}}, []string{"view: paths can be read and changed, such as .git/b; before: */b: hold"}},
		"nor hidden any more":      {PolicySpec{Paths: rules(hide, "*/b")}, PolicySpec{Paths: rules(Hold, "**"), Git: &GitRules{}}, []string{"view: paths can be read and changed, such as .git/b; before: */b: hide"}},
		"too much": {PolicySpec{Paths: rules(hide, "**/*a*b*c*d*e*f*g*h*i*j*k*l*")}, PolicySpec{Paths: append(rules(hide, "**/*l*k*j*i*h*g*", "**/*b*a*d*c*f*e*", "**/*c*e*a*f*h*g*k*i*"), rules(hide, "**/*[^l]*", "**/*l*")...)},
			[]string{"undecided: view: **/*a*b*c*d*e*f*g*h*i*j*k*l*: hide"}},
	} {
		t.Run(name, func(t *testing.T) {
			was, err := Compile(test.was)
			require.NoError(t, err)
			now, err := Compile(test.now)
			require.NoError(t, err)
			var lines []string
			for _, e := range now.Excess(was) {
				lines = append(lines, e.String())
			}
			assert.Equal(t, test.want, lines)
		})
	}
}
