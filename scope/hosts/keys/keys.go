// Package keys has the variables that credentials of the built-in presets read.
package keys

// Builtin returns their names.
func Builtin() []string { return []string{"ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"} }
