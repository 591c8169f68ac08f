package fields

// IsPlainName reports whether s has only letters, digits, '_', '-' and '.',
// starts with a letter or a digit, and has at most longest bytes.
func IsPlainName(s string, longest int) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '-' && c != '.') {
			return false
		}
	}
	return s != "" && len(s) <= longest
}
