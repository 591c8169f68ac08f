package scope

import "path"

// maxLeads bounds what GitLeads returns.
const maxLeads = 64

// GitLeads returns the paths in a work tree to which the config of its repository leads git: directories with hooks, and files of
// settings, which lead further. core.hooksPath is relative to the work tree, include.path to the config's directory: git-config(1). at is
// that directory. What leads out of the work tree is left out, and so is a config in a form that git does not write.
func GitLeads(at string, config []byte) (hooks, settings []string) {
	all, err := parseGitConfig(config)
	if err != nil {
		return nil, nil
	}
	for _, s := range all {
		switch {
		case len(hooks)+len(settings) == maxLeads || s.value == "" || s.value[0] == '~':
		case s.key() == "core.hookspath":
			if rel, ok := within("", s.value); ok {
				hooks = append(hooks, rel)
			}
		case s.name == "path" && (s.section == "include" || s.section == "includeif"):
			if rel, ok := within(at, s.value); ok {
				settings = append(settings, rel)
			}
		}
	}
	return hooks, settings
}

// within returns where a path leads from a directory of a view; false out of the view, to its root and into a repository's own files,
// which have rules of their own.
func within(dir, to string) (rel string, ok bool) {
	if in, inside := insidePath(to, 0); inside && to[0] == '/' {
		dir, to = "", in
	} else if to[0] == '/' {
		return "", false
	}
	rel = path.Join(dir, to)
	if rel == "." || rel == ".." || len(rel) > 2 && rel[:3] == "../" || classifyGit(rel).inside {
		return "", false
	}
	return rel, true
}
