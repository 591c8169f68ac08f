package excess

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestPolicyExcess: of two random policies, each path that only one allows has an excess with as much access, and each excess is
// true.
func TestPolicyExcess(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	policy := func() *scope.Policy {
		spec := scope.PolicySpec{Access: []scope.Access{scope.Write, scope.Read}[r.IntN(2)]}
		for range r.IntN(4) {
			spec.Paths = append(spec.Paths, scope.PathRule{Pattern: text(r, 4, "a", "b", "/", "*", "**/", "[ab]", "{a,b/**}", "A"), Access: scope.Access(r.IntN(int(scope.Hide) + 1))})
		}
		for range r.IntN(2) {
			spec.Protect = append(spec.Protect, scope.Protect{Name: "p", Paths: []string{text(r, 4, "a", "b", "/", "*", "**/")}, Hold: r.IntN(2) == 0})
		}
		if r.IntN(3) == 0 {
			spec.Git = &scope.GitRules{Hooks: true}
		}
		p, err := scope.Compile(spec)
		if err != nil {
			p, _ = scope.Compile(scope.PolicySpec{Access: spec.Access})
		}
		return p
	}
	wider := 0
	for range 4000 {
		now, was := policy(), policy()
		all := Of(now, was)
		for _, e := range all {
			if e.Key == "view" && e.Witness != "" {
				d, old := now.ByPaths(scope.OpStat, e.Witness), was.ByPaths(scope.OpStat, e.Witness)
				asked := now.Gate(e.Witness) == "" && was.Gate(e.Witness) != ""
				require.True(t, d.Access < old.Access || asked, "%+v %+v %+v", now.Spec(), was.Spec(), e)
			}
		}
		for range 30 {
			rel := strings.Trim(text(r, 6, "a", "b", "/a", "/b", "/c", "A", ".git", "/x.git"), "/")
			d, old := now.ByPaths(scope.OpStat, rel), was.ByPaths(scope.OpStat, rel)
			if rel != "" && d.Access < old.Access {
				wider++
				told := func(e Excess) bool {
					return e.Key == "view" && (e.Undecided || e.Witness != "" && slices.Index(accessTexts[:], e.What) <= int(d.Access))
				}
				require.True(t, slices.ContainsFunc(all, told), "%s: %+v before %+v: %+v %+v", rel, d, old, now.Spec(), was.Spec())
			}
		}
	}
	assert.Greater(t, wider, 1000)
}

// TestPolicyExcessOne: which rules are lost, opened or covered by others.
func TestPolicyExcessOne(t *testing.T) {
	t.Parallel()
	read, hide, write := scope.Read, scope.Hide, scope.Write
	rules := func(of scope.Access, patterns ...string) (all []scope.PathRule) {
		for _, p := range patterns {
			all = append(all, scope.PathRule{Pattern: p, Access: of})
		}
		return all
	}
	for name, test := range map[string]struct {
		was, now scope.PolicySpec
		want     []string
	}{
		"equal":                    {scope.PolicySpec{Paths: rules(hide, "a")}, scope.PolicySpec{Paths: rules(hide, "a")}, nil},
		"lost":                     {scope.PolicySpec{Paths: rules(hide, "a/*.x")}, scope.PolicySpec{}, []string{"view: paths can be read and changed, such as a/.x; before: a/*.x: hide"}},
		"covered by another":       {scope.PolicySpec{Paths: rules(hide, "**/*.x")}, scope.PolicySpec{Paths: rules(hide, "**/*x")}, nil},
		"covered by several":       {scope.PolicySpec{Paths: rules(hide, "[ab]/c")}, scope.PolicySpec{Paths: rules(hide, "a", "b")}, nil},
		"two":                      {scope.PolicySpec{Paths: append(rules(hide, "a"), rules(read, "b")...)}, scope.PolicySpec{}, []string{"view: paths can be read and changed, such as a; before: a: hide", "view: paths can be read and changed, such as b; before: b: read"}},
		"two alike":                {scope.PolicySpec{Paths: rules(hide, "{a,b}")}, scope.PolicySpec{}, []string{"view: paths can be read and changed, such as a; before: {a,b}: hide"}},
		"read beside hold":         {scope.PolicySpec{Paths: rules(hide, "a")}, scope.PolicySpec{Paths: rules(read, "a"), Protect: []scope.Protect{{Name: "p", Paths: []string{"z"}, Hold: true}}}, []string{"view: paths can be read, such as a; before: a: hide"}},
		"hold":                     {scope.PolicySpec{Paths: rules(read, "z")}, scope.PolicySpec{Protect: []scope.Protect{{Name: "p", Paths: []string{"z"}, Hold: true}}}, []string{"view: paths can be read, and changes are held, such as z; before: z: read", "undecided: view: z: read"}},
		"a list undecided":         {scope.PolicySpec{Protect: []scope.Protect{{Name: "p", Paths: []string{"y", "z"}}}}, scope.PolicySpec{Protect: []scope.Protect{{Name: "p", Paths: []string{"y", "z"}, Hold: true}}}, []string{"view: paths can be read, and changes are held, such as y; before: protect p", "undecided: view: protect p: read"}},
		"the widest":               {scope.PolicySpec{Paths: rules(hide, "[ab]")}, scope.PolicySpec{Paths: rules(read, "a")}, []string{"view: paths can be read and changed, such as b; before: [ab]: hide"}},
		"covered in part":          {scope.PolicySpec{Paths: rules(hide, "[ab]/c")}, scope.PolicySpec{Paths: rules(hide, "a")}, []string{"view: paths can be read and changed, such as b/c; before: [ab]/c: hide"}},
		"less strict":              {scope.PolicySpec{Paths: rules(hide, "a")}, scope.PolicySpec{Paths: rules(read, "a")}, []string{"view: paths can be read, such as a; before: a: hide"}},
		"changed":                  {scope.PolicySpec{Access: read}, scope.PolicySpec{Access: read, Paths: rules(write, "a")}, []string{"view: paths can be read and changed, such as a; before: access: read"}},
		"opened and closed":        {scope.PolicySpec{Access: read}, scope.PolicySpec{Access: read, Paths: append(rules(write, "a/*"), rules(read, "**/*")...)}, nil},
		"default":                  {scope.PolicySpec{Access: read}, scope.PolicySpec{}, []string{"view: paths can be read and changed, such as x; before: access: read"}},
		"default closed":           {scope.PolicySpec{Access: read}, scope.PolicySpec{Paths: rules(read, "**")}, nil},
		"dots":                     {scope.PolicySpec{Paths: rules(hide, "?")}, scope.PolicySpec{Paths: rules(hide, "[^.]")}, nil},
		"two dots":                 {scope.PolicySpec{Paths: rules(hide, ".?")}, scope.PolicySpec{}, []string{"view: paths can be read and changed, such as .x; before: .?: hide"}},
		"protect":                  {scope.PolicySpec{Protect: []scope.Protect{{Name: "p", Paths: []string{"**/a"}}}}, scope.PolicySpec{Paths: rules(read, "**/a")}, []string{"view: paths can be read and changed, such as A; before: protect p"}},
		"asked no more":            {scope.PolicySpec{Paths: rules(scope.Ask, "a")}, scope.PolicySpec{}, []string{"view: paths can be read and changed, such as a; before: a: ask"}},
		"asked, and sealed":        {scope.PolicySpec{Paths: rules(scope.Ask, "a")}, scope.PolicySpec{Paths: rules(scope.Seal, "a")}, nil},
		"asked first":              {scope.PolicySpec{Paths: rules(hide, "a")}, scope.PolicySpec{Paths: rules(scope.Ask, "a")}, []string{"view: paths can be read and changed once you allow it, such as a; before: a: hide"}},
		"opened":                   {scope.PolicySpec{Closed: true}, scope.PolicySpec{}, []string{"view: nothing is asked first; before: access: ask"}},
		"closed both":              {scope.PolicySpec{Closed: true}, scope.PolicySpec{Closed: true}, nil},
		"links":                    {scope.PolicySpec{Hardlinks: scope.HardlinksDeny}, scope.PolicySpec{Hardlinks: scope.HardlinksRead}, []string{"view: hardlinks: read; before: hardlinks: deny"}},
		"git":                      {scope.PolicySpec{Git: &scope.GitRules{Hooks: true, Config: []string{"a.b"}}}, scope.PolicySpec{Git: &scope.GitRules{Config: []string{"a.b", "c.d"}}}, []string{"protect: git's hooks can be changed", "protect: git's configuration can be changed at c.d"}},
		"git's hooks stay":         {scope.PolicySpec{Git: &scope.GitRules{Hooks: true, Config: []string{"a.b"}}}, scope.PolicySpec{Git: &scope.GitRules{Hooks: true, Config: []string{"a.b", "c.d"}}}, []string{"protect: git's configuration can be changed at c.d"}},
		"git's hooks alone":        {scope.PolicySpec{Git: &scope.GitRules{Hooks: true}}, scope.PolicySpec{Git: &scope.GitRules{}}, []string{"protect: git's hooks can be changed"}},
		"no git":                   {scope.PolicySpec{Git: &scope.GitRules{Hooks: true, Config: []string{"a.b"}}}, scope.PolicySpec{}, []string{"protect: git's hooks can be changed", "protect: git's configuration can be changed"}},
		"part of a class":          {scope.PolicySpec{Paths: rules(hide, "[a-c]")}, scope.PolicySpec{Paths: rules(hide, "[ab]")}, []string{"view: paths can be read and changed, such as c; before: [a-c]: hide"}},
		"another spelling":         {scope.PolicySpec{Protect: []scope.Protect{{Name: "p", Paths: []string{"a"}}}}, scope.PolicySpec{Paths: rules(read, "[aA]")}, []string{"view: paths can be read and changed, such as a\u00ad; before: protect p"}},
		"git's files are not held": {scope.PolicySpec{Paths: rules(scope.Hold, "*/b")}, scope.PolicySpec{Paths: rules(scope.Hold, "**"), Git: &scope.GitRules{}}, []string{"view: paths can be read and changed, such as .git/b; before: */b: hold"}},
		"nor hidden any more":      {scope.PolicySpec{Paths: rules(hide, "*/b")}, scope.PolicySpec{Paths: rules(scope.Hold, "**"), Git: &scope.GitRules{}}, []string{"view: paths can be read and changed, such as .git/b; before: */b: hide"}},
		"too much": {scope.PolicySpec{Paths: rules(hide, "**/*a*b*c*d*e*f*g*h*i*j*k*l*")}, scope.PolicySpec{Paths: append(rules(hide, "**/*l*k*j*i*h*g*", "**/*b*a*d*c*f*e*", "**/*c*e*a*f*h*g*k*i*"), rules(hide, "**/*[^l]*", "**/*l*")...)},
			[]string{"undecided: view: **/*a*b*c*d*e*f*g*h*i*j*k*l*: hide"}},
	} {
		t.Run(name, func(t *testing.T) {
			was, err := scope.Compile(test.was)
			require.NoError(t, err)
			now, err := scope.Compile(test.now)
			require.NoError(t, err)
			var lines []string
			for _, e := range Of(now, was) {
				lines = append(lines, e.String())
			}
			assert.Equal(t, test.want, lines)
		})
	}
}

// TestAskExcess: an approval in place of a refusal is more, and none in place of one is more again.
func TestAskExcess(t *testing.T) {
	of := func(a scope.Access) *scope.Policy {
		return compile(t, scope.PolicySpec{Access: scope.Read, Paths: []scope.PathRule{{Pattern: "docs/**", Access: a}}})
	}
	for _, test := range []struct {
		now, was scope.Access
		more     bool
	}{{scope.Ask, scope.Hide, true}, {scope.Ask, scope.Ask, false}, {scope.Read, scope.Ask, true}, {scope.Write, scope.Ask, true}, {scope.Ask, scope.Write, false}, {scope.Hide, scope.Ask, false}, {scope.Ask, scope.Read, false}} {
		assert.Equal(t, test.more, len(Of(of(test.now), of(test.was))) > 0, "%v after %v: %v", test.now, test.was, Of(of(test.now), of(test.was)))
	}
	open, closed := compile(t, scope.PolicySpec{}), compile(t, scope.PolicySpec{Closed: true})
	assert.NotEmpty(t, Of(open, closed))
	assert.Empty(t, Of(closed, open))
}

func compile(t *testing.T, spec scope.PolicySpec) *scope.Policy {
	p, err := scope.Compile(spec)
	require.NoError(t, err)
	return p
}
