// Package calendar knows when the owner has time, and answers mesh.schedule with it.
//
// It reads busy times from iCalendar files and CalDAV collections (RFC 5545, RFC 4791), finds free times inside the
// owner's working hours ([Planner]), says what to answer to a proposal ([Scheduler]), and writes what was agreed back
// ([Book]). It knows no node and sends nothing.
//
// Calendars are not trusted to be right. What cannot be read makes the owner decide instead of a guess: an unreadable
// calendar is an error of [Planner], an event whose time cannot be told blocks all the time that it may lie in, and
// each is reported as a [Problem].
//
// Start with [NewPlanner].
package calendar
