package credential

import "github.com/scopefs/scopefs/internal/mask"

// Redact replaces the secret in text by "***", as it is and in the encodings of services that repeat a request: each
// character in JSON, HTML, percent encoding or UTF-16, the whole in hexadecimal or base64. It cannot find a secret in
// pieces or in another encoding. It leaves text alone for a secret of fewer than 8 bytes.
func (s Secret) Redact(text string) string { return s.mask().Replace(text) }

// RedactCut is Redact for a text whose end was cut off: it also removes the beginning of a
// secret at the end.
func (s Secret) RedactCut(text string) string { return s.mask().ReplaceCut(text) }

func (s Secret) mask() *mask.Mask { return mask.New(mask.Forms(s.text)...) }
