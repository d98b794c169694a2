//go:build !slow

package guard_test

// allTexts: without the tag slow, the programs of the examples get every 24th text.
const allTexts = false
