// Package view holds what an owner sees of a MEW space, hosted here or joined over a link: its state, pending
// decisions, its envelopes, and why a space refused something.
package view
