package pages

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// maxListed is how many rows of a list a page has.
const maxListed = 100

// listed is the part of a list that a page has.
type listed struct {
	Find                 string // a part of the name
	From, To, Found, All int
	Previous, Next       string // queries; "": there is no such page
}

// Long reports whether the list has more than one page has.
func (l listed) Long() bool { return l.All > maxListed }

// listOf returns the part of a list that a request names: find has a part of the names, page a number from 1.
func listOf[T any](r *http.Request, all []T, name func(T) string) ([]T, listed, error) {
	v := r.URL.Query()
	l := listed{Find: v.Get("find"), All: len(all)}
	if l.Find != "" {
		var found []T
		for _, one := range all {
			if strings.Contains(strings.ToLower(name(one)), strings.ToLower(l.Find)) {
				found = append(found, one)
			}
		}
		all = found
	}
	l.Found = len(all)
	n := 1
	if text := v.Get("page"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > 1<<20 {
			return nil, l, invalid("page: %q is no number of a page", text)
		}
	}
	query := func(page int) string { return url.Values{"find": {l.Find}, "page": {strconv.Itoa(page)}}.Encode() }
	l.From, l.To = min((n-1)*maxListed, len(all)), min(n*maxListed, len(all))
	if n > 1 {
		l.Previous = query(n - 1)
	}
	if l.To < len(all) {
		l.Next = query(n + 1)
	}
	all = all[l.From:l.To]
	if len(all) > 0 {
		l.From++
	}
	return all, l, nil
}
