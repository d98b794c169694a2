//go:build slow

package main

const slow = true
