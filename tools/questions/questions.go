// Package questions has a question to the user of a client, and its answer.
package questions

// Question is a question to the client's user.
type Question struct {
	Text    string
	Options []string // to choose one from; none: answer freely
}

// Answer is the user's answer. Declined reports that the user refused to answer.
type Answer struct {
	Text     string
	Declined bool
}
