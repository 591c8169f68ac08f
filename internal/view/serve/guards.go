package serve

import (
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// maxIncludes bounds the files of settings of a repository that guarded reads.
const maxIncludes = 16

// guarded applies the rules for git's files to a directory that is a repository itself. It adds to the rules of an agent that protects
// hooks the paths to which the repository of its directory leads git of the host: core.hooksPath, and the files that its config
// includes. It reads them when the view gets its rules; protect keeps agents from changing them.
func guarded(root *beneath.Root, spec scope.PolicySpec) scope.PolicySpec {
	if spec.Git == nil {
		return spec
	}
	if !spec.Git.Bare && isRepository(root) {
		bare := *spec.Git
		bare.Bare, spec.Git = true, &bare
	}
	if !spec.Git.Hooks {
		return spec
	}
	var paths []string
	files := []string{".git/config"}
	for i := 0; i < len(files) && i < maxIncludes; i++ {
		hooks, settings := scope.GitLeads(path.Dir(files[i]), readSmall(root, files[i]))
		for _, rel := range slices.Concat(hooks, settings) {
			paths = append(paths, scope.QuotePattern(rel))
		}
		for _, rel := range settings {
			if !slices.Contains(files, rel) {
				files = append(files, rel)
			}
		}
	}
	if len(paths) == 0 {
		return spec
	}
	hold := slices.ContainsFunc(spec.Protect, func(p scope.Protect) bool { return p.Hold })
	spec.Protect = append(slices.Clone(spec.Protect), scope.Protect{Name: "git-hooks", Paths: paths, Hold: hold})
	return spec
}

// isRepository reports whether a directory is a repository itself, by what git goes by: is_git_directory in git's setup.c.
func isRepository(root *beneath.Root) bool {
	_, err := root.Stat("HEAD")
	objects, _ := root.Stat("objects")
	refs, _ := root.Stat("refs")
	return err == nil && objects.IsDir() && refs.IsDir()
}

// readSmall returns the content of a file of at most scope.MaxGitText bytes; nil: there is none.
func readSmall(root *beneath.Root, rel string) []byte {
	st, err := root.Stat(rel)
	if err != nil || !st.IsRegular() || st.Size > scope.MaxGitText {
		return nil
	}
	f, err := root.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return nil
	}
	defer f.Close()
	text := make([]byte, st.Size)
	n, err := f.ReadAt(text, 0)
	if err != nil {
		return nil
	}
	return text[:n]
}
