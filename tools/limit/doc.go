// Package limit has the bounds of what agents use at a time and over time. It
// knows no tool and has no constants: the users of a bound state how much.
//
//   - [Rates] bounds how often something happens, and outlives the process.
//   - [Pace] delays what is too fast, and refuses nothing.
//   - [Share] delays input by the processor time that it takes.
//   - [Queue] shares turns fairly among agents.
//   - [Slots] bounds how many do something at the same time.
//   - [Budget] bounds an amount that is held, such as bytes.
//
// All of them may be used by any number of goroutines. Every wait ends with its
// context.
package limit
