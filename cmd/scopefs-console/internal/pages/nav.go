package pages

// entryOf is a page that the navigation has.
type entryOf struct {
	Path, Title, Name string
	Badge             bool // with the number of approvals that wait
}

var entries = []entryOf{
	{"/", "Now", "now", false},
	{"/inbox", "Inbox", "inbox", true},
	{"/denials", "Denials", "denials", false},
	{"/changes", "Changes", "changes", false},
	{"/definitions", "Definitions", "definitions", false},
	{"/log", "Log", "log", false},
	{"/charts", "Charts", "charts", false},
	{"/devices", "Devices", "devices", false},
}

// navigation returns the entries, and which is the page of a name.
func navigation(name string) (list []struct {
	entryOf
	Here bool
}) {
	for _, e := range entries {
		list = append(list, struct {
			entryOf
			Here bool
		}{e, e.Name == name})
	}
	return list
}
