// What the page does beyond HTML: live tail, filter, keyboard.
