// Package view holds what an owner sees of a MEW space, hosted here or joined over a link: its state, what waits for a
// decision, the envelopes that pass, and why a space refused something.
package view
