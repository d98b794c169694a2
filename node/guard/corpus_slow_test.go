//go:build slow

package guard_test

const allTexts = true
